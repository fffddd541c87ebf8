"""A ServerApp. Where Flower's example has `FedAvg(...)`, this one has `Clustered(FedClust(), ...)`; that is all."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedclade.flower import Clustered
from fedclade.methods import FedClust
from plain_app.net import make_net

app = ServerApp()
OUT = "plain-app-run"


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Clustered(FedClust(), fraction_train=1.0, min_available_nodes=6)
    found = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_net().state_dict()),
        num_rounds=int(context.run_config.get("rounds", 5)),
        out=str(context.run_config.get("out", OUT)),  # `fedclade show` and `fedclade report` read it
    )
    for cluster, clients in found.clusters.items():
        print(f"cluster {cluster}: {', '.join(clients)}")
        torch.save(found.arrays_for(clients[0]).to_torch_state_dict(), found.folder.path / f"cluster-{cluster}.pt")
