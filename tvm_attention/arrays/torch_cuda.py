"""torch tensors in a GPU's memory."""

from __future__ import annotations

import sys
from typing import Any

from numpy.typing import NDArray

from tvm_attention.arrays.torch_tensors import TorchTensors

_CUDA = 2  # DLPack's number of memory of NVIDIA's GPUs


class TorchCudaTensors(TorchTensors):
    """Those of the GPU that a query is on."""

    name = "torch tensors on a GPU"

    def __init__(self, place: Any) -> None:
        super().__init__()
        self._place = place

    def numbers(self, array: Any) -> NDArray[Any]:
        """A copy on the processor: waits for what the GPU has to do before."""
        return super().numbers(array.cpu())

    def uploaded(self, numbers: NDArray[Any], like: Any) -> Any:
        """A copy of an array on the processor in the memory of ``like``'s GPU, made before anything that
        the caller's stream runs later."""
        pinned = self._torch.from_numpy(numbers).pin_memory()  # torch keeps it until it was read
        return pinned.to(like.device, non_blocking=True)

    def floats(self, array: Any) -> Any:
        """A dense float32 tensor of a tensor on the query's GPU: itself, if it is one; None for anything
        else. What it holds is not looked at: nobody waits for the GPU."""
        found = self._there(array)
        return None if found is None else found.detach().float().contiguous()

    def whole_numbers(self, array: Any) -> Any:
        """The same of whole numbers, as int32; None for anything but a tensor of such there."""
        found = self._there(array)
        if found is None or found.dtype not in _whole(self._torch):
            return None
        return found.detach().to(self._torch.int32).contiguous()

    def units(self, rows: int, start: int, columns: int, like: Any) -> Any:
        """(rows, columns) of like's dtype, on its GPU: ones at (``start`` + n, n), zeros elsewhere."""
        made = like.new_zeros((rows, columns))
        made[start : start + columns].fill_diagonal_(1.0)
        return made

    def _there(self, array: Any) -> Any:
        """A tensor on the query's GPU: itself, or another library's memory; None for anything else."""
        if isinstance(array, self._torch.Tensor):
            return array if array.device == self._place else None
        place = getattr(array, "__dlpack_device__", None)
        if place is None or tuple(int(n) for n in place()) != (_CUDA, self._place.index):
            return None
        return self._torch.from_dlpack(array)

    @property
    def int8(self) -> Any:
        """torch's dtype of that name."""
        return self._torch.int8

    def device(self, array: Any) -> int:
        """The number of the array's GPU."""
        return int(array.device.index)

    def stream(self, array: Any) -> int:
        """The handle of the caller's current stream on the array's GPU."""
        return int(self._torch.cuda.current_stream(array.device).cuda_stream)

    def captures(self, array: Any) -> bool:
        """Whether what that stream is asked for is written into a graph."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def target(self, array: Any) -> str:
        """The name of the target that the array's GPU is."""
        major, minor = self._torch.cuda.get_device_capability(array.device)
        return f"cuda-sm_{major}{minor}"

    def _on(self) -> str:
        return f"{self._place} like the query"

    def _conversion(self) -> str:
        return f".to({str(self._place)!r})"


def _whole(torch: Any) -> tuple[Any, ...]:
    return (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


def torch_cuda_kind(query: Any) -> TorchCudaTensors | None:
    """The kind of a torch tensor in a GPU's memory; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(query, torch.Tensor) or not query.is_cuda:
        return None
    return TorchCudaTensors(query.device)
