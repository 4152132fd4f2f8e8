"""The training state from one rank to the others, by broadcast: what a checkpoint holds, without the disk.

Parts are whatever has `state_dict` and `load_state_dict`. Tensors go as they are, on the device that they are on, in
pieces; the rest goes as `torch.save` writes it, and is read back with `weights_only=True`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

PIECE = 32 << 20  # bytes in a broadcast
TENSOR = "hpcdl tensor"


def share(parts: Mapping[str, Any], more: str, source: int, take: bool) -> str:
    """Collective. Where `take` is set, the parts get the source's state; elsewhere it passes by. Returns the source's
    `more`. Raises what a failed collective raises; the parts then are as they were."""
    import torch
    import torch.distributed as dist

    sends = dist.get_rank() == source
    tensors: list[Any] = []
    header = torch.zeros(1, dtype=torch.int64)
    if sends:
        states = {name: _take_out(part.state_dict(), tensors) for name, part in sorted(parts.items())}
        kinds = [(str(each.dtype).rpartition(".")[2], list(each.shape), each.device.type) for each in tensors]
        buffer = io.BytesIO()
        torch.save([states, kinds, more], buffer)
        body = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        header[0] = len(body)
    dist.broadcast(header, src=source)
    if not sends:
        body = torch.empty(int(header.item()), dtype=torch.uint8)
    dist.broadcast(body, src=source)
    if not sends:
        states, kinds, more = torch.load(io.BytesIO(body.numpy().tobytes()), map_location="cpu", weights_only=True)
        tensors = [torch.empty(shape, dtype=getattr(torch, kind), device=device) for kind, shape, device in kinds]
    for piece in _pieces(tensors):
        whole = torch.cat([each.detach().contiguous().view(-1).view(torch.uint8) for each in piece])
        dist.broadcast(whole, src=source)
        if not sends:
            at = 0
            for each in piece:
                size = each.numel() * each.element_size()
                each.view(-1).view(torch.uint8).copy_(whole[at : at + size])
                at += size
    if take and not sends:
        for name, part in parts.items():
            part.load_state_dict(_put_back(states[name], tensors))
    return str(more)


def _pieces(tensors: list[Any]) -> Iterator[list[Any]]:
    """In order, those of one device together, of PIECE bytes or one tensor at least."""
    piece: list[Any] = []
    size = 0
    for each in tensors:
        if each.numel() == 0:
            continue
        if piece and (size >= PIECE or each.device.type != piece[0].device.type):
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += each.numel() * each.element_size()
    if piece:
        yield piece


def _take_out(state: Any, tensors: list[Any]) -> Any:
    import torch

    if isinstance(state, torch.Tensor):
        tensors.append(state)
        return {TENSOR: len(tensors) - 1}
    if isinstance(state, Mapping):
        return {key: _take_out(value, tensors) for key, value in state.items()}
    if isinstance(state, list):
        return [_take_out(each, tensors) for each in state]
    if type(state) is tuple:
        return tuple(_take_out(each, tensors) for each in state)
    return state


def _put_back(state: Any, tensors: list[Any]) -> Any:
    if isinstance(state, dict):
        if len(state) == 1 and TENSOR in state:
            return tensors[state[TENSOR]]
        return {key: _put_back(value, tensors) for key, value in state.items()}
    if isinstance(state, list):
        return [_put_back(each, tensors) for each in state]
    if type(state) is tuple:
        return tuple(_put_back(each, tensors) for each in state)
    return state
