"""LSTM cells that read windows forwards, and others that read them backwards: their last states.

Both directions of K clients are 2 K matrices of one product. What a cell reads at a moment lies side by side: the
window's numbers, two ones for the two biases, and the state before. So there is one product a moment, and in the end
one for all gradients of the weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedclade.clients.batched.kernel import product
from fedclade.clients.batched.layers import Operation, Pairs, Step
from fedclade.clients.batched.places import Block, Place, filled, zeros

through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
through_tanh = torch.ops.aten.tanh_backward.grad_input
GATES = (0, 1, 3, 2)  # torch's order is: let in, keep, new, let out


class BiLstm(Operation):
    takes_plain = False

    def __init__(self, layer: nn.LSTM, places: Mapping[str, slice], moments: int, batch: int) -> None:
        self.places, self.moments, self.batch = places, moments, batch
        self.inputs, self.hidden = layer.input_size, layer.hidden_size
        self.states = slice(self.inputs + 2, self.inputs + 2 + self.hidden)  # the columns with the state before
        self.form = (8 * self.hidden, filled(self.states.stop, batch))
        self.numbers = 2 * batch * (self.form[1] + 10 * self.hidden)  # at one moment

    def parts(self, flat: Tensor, packed: Tensor) -> Pairs:
        packed = packed.unflatten(1, (2, 4, self.hidden))
        columns = {
            "weight_ih": slice(self.inputs),
            "bias_ih": slice(self.inputs, self.inputs + 1),
            "bias_hh": slice(self.inputs + 1, self.inputs + 2),
            "weight_hh": self.states,
        }
        return [
            (
                flat[:, self.places[f"{name}_l0{direction}"]].unflatten(1, (4, self.hidden, -1))[:, gate],
                packed[:, way, place, :, column],
            )
            for way, direction in enumerate(("", "_reverse"))
            for name, column in columns.items()
            for place, gate in enumerate(GATES)
        ]

    def entered(self, rows: Tensor) -> Tensor:
        windows = (rows if rows.ndim == 4 else rows.unsqueeze(3)).permute(0, 3, 1, 2)
        return torch.stack([windows, windows.flip(1)], 1)

    def build(self, clients: int, out: Place, block: Block, first: bool) -> Step:
        n, time, batch, hidden = 2 * clients, self.moments, self.batch, self.hidden
        x = zeros(n, time, batch, block.value.shape[2])
        x[..., self.inputs : self.inputs + 2] = 1
        value = x[..., : self.inputs].unflatten(0, (clients, 2))
        gates, g_gates = (zeros(n, time, batch, 4 * hidden) for _ in range(2))
        z = zeros(n, batch, 4 * hidden)
        last, g_state, g_cell, some = (zeros(n, batch, hidden) for _ in range(4))
        cell, tanh_cell = (zeros(time + 1, n, batch, hidden).unbind(0) for _ in range(2))
        seen, gate, g_gate = x.unbind(1), gates.unbind(1), g_gates.unbind(1)
        state = [*(one[..., self.states] for one in seen[1:]), last]
        let_in, kept, let_out, new = zip(*(one.split(hidden, 2) for one in gate), strict=True)
        g_let_in, g_kept, g_let_out, g_new = zip(*(one.split(hidden, 2) for one in g_gate), strict=True)
        sigmoids, g_sigmoids = ([one[..., : 3 * hidden] for one in each] for each in (gate, g_gate))
        z_new = z[..., 3 * hidden :]
        weights, grad = (t.view(n, 4 * hidden, -1) for t in (block.value, block.grad))
        turned, recurrent = weights.transpose(1, 2), weights[:, :, self.states]
        g_rows, x_rows = g_gates.flatten(1, 2).transpose(1, 2), x.flatten(1, 2)
        to, back = (t.unflatten(2, (2, hidden)).transpose(1, 2) for t in (out.value, out.grad))
        look = [product(one, turned, z) for one in seen]
        give_back = [product(one, recurrent, g_state) for one in g_gate]
        learn = product(g_rows, x_rows, grad)
        ends, g_ends = (t.unflatten(0, (clients, 2)) for t in (last, g_state))

        def forward() -> None:
            for t in range(time):
                look[t](0.0)
                # tanh(a) is 2 sigmoid(2 a) - 1, and torch's sigmoid is several times as fast.
                z_new.mul_(2)
                torch.sigmoid(z, out=gate[t])
                new[t].mul_(2).sub_(1)
                torch.mul(kept[t], cell[t], out=cell[t + 1]).addcmul_(let_in[t], new[t])
                torch.mul(cell[t + 1], 2, out=tanh_cell[t]).sigmoid_().mul_(2).sub_(1)
                torch.mul(let_out[t], tanh_cell[t], out=state[t])
            to.copy_(ends)

        def backward(keep: float) -> None:
            g_ends.copy_(back)
            g_cell.zero_()
            for t in range(time - 1, -1, -1):
                torch.mul(g_state, tanh_cell[t], out=g_let_out[t])
                torch.mul(g_state, let_out[t], out=some)
                g_cell.add_(through_tanh(some, tanh_cell[t], grad_input=some))
                torch.mul(g_cell, new[t], out=g_let_in[t])
                torch.mul(g_cell, cell[t], out=g_kept[t])
                torch.mul(g_cell, let_in[t], out=g_new[t])
                g_cell.mul_(kept[t])
                through_sigmoid(g_sigmoids[t], sigmoids[t], grad_input=g_sigmoids[t])
                through_tanh(g_new[t], new[t], grad_input=g_new[t])
                give_back[t](0.0)
            learn(keep)

        return Step(Place(x, value, x, value), forward, backward)
