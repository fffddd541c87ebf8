"""A ClientApp as Flower's own FedAvg takes it: it knows nothing of clusters."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from plain_app.net import make_net, rows_of

app = ClientApp()


def given(message: Message, context: Context) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    net = make_net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    config = context.node_config
    return net, rows_of(int(config["partition-id"]), int(config["num-partitions"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net, (x, y, _, _) = given(message, context)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        for batch in torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).split(16):
            optimizer.zero_grad()
            loss = cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(y)})
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(reply, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, (_, _, x, y) = given(message, context)
    with torch.no_grad():
        out = net(x)
    right = (out.argmax(1) == y).float().mean().item()
    metrics = MetricRecord({"loss": cross_entropy(out, y).item(), "accuracy": right, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
