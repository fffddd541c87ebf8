"""Real federations on Flower: what the server and a node do (`server`, `node`), and a place to try it out (`local`)."""
