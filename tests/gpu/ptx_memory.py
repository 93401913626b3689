"""Global and shared memory that fault: on what lies outside, on what is not aligned, on what two threads race for.

Every pointer argument has 2^40 bytes of addresses to itself, so no index of a kernel reaches a neighbour by mistake.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.ptx_parser import PtxFault

__all__ = ["SHARED_BASE", "Buffer", "GlobalMemory", "SharedMemory"]

Array = npt.NDArray[Any]
_REGION = 40  # bits of a buffer's address range
SHARED_BASE = 1024  # not 0, so that a lost base is seen
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Buffer:
    """One argument's bytes. `shift` moves the first byte off a multiple of 256, as a slice of a tensor would."""

    def __init__(self, array: Array, region: int, shift: int = 0) -> None:
        self.array, self.size, self.shift = array, array.nbytes, shift
        self.writable, self.touched = array.flags.writeable, False
        self.bytes = np.zeros(-(-(array.nbytes + shift) // 16) * 16, np.uint8)
        self.bytes[shift : shift + self.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.writer = np.full(self.bytes.size, -1, np.int64)  # the thread that wrote each byte in this launch
        self.address = (region << _REGION) + 256 + shift

    def give_back(self) -> None:
        if self.touched:
            flat = self.bytes[self.shift : self.shift + self.size].view(self.array.dtype)
            self.array[...] = flat.reshape(self.array.shape)


class GlobalMemory:
    """The buffers of one launch."""

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}

    def add(self, array: Array, shift: int = 0) -> int:
        """The address of an argument; one that is there already, as a result in place of an input, has it too."""
        for buffer in self.buffers.values():
            same = buffer.array.__array_interface__["data"] == array.__array_interface__["data"]
            if same and buffer.size == array.nbytes and array.nbytes:
                return buffer.address
        region = len(self.buffers) + 1
        self.buffers[region] = Buffer(array, region, shift)
        return self.buffers[region].address

    def locate(self, addresses: Array, width: int) -> tuple[Buffer, Array]:
        """The buffer and the places in it; all lanes must be in the same one."""
        if (addresses & np.uint64(width - 1)).any():
            raise PtxFault(f"global access of {width} bytes at an address that is not a multiple of {width}")
        region = int(addresses[0]) >> _REGION
        buffer = self.buffers.get(region)
        if buffer is None:
            raise PtxFault(f"global access at {int(addresses[0]):#x}, in no buffer")
        places = addresses - np.uint64(buffer.address)  # wraps below the buffer: then it is too large as well
        if width > buffer.size or (places > np.uint64(buffer.size - width)).any():
            raise PtxFault(f"global access of {width} bytes outside of argument {region - 1} ({buffer.size} bytes)")
        return buffer, places.astype(np.int64) + buffer.shift

    def load(self, addresses: Array, width: int, threads: Array) -> Array:
        """Unsigned words of `width` bytes; no thread may read what another one wrote in this launch."""
        buffer, places = self.locate(addresses, width)
        writer = buffer.writer[places]
        if ((writer >= 0) & (writer != threads)).any():
            raise PtxFault("a thread reads global memory that another one wrote in the same launch")
        return buffer.bytes.view(_UNSIGNED[width])[places // width]

    def store(self, addresses: Array, words: Array, threads: Array) -> None:
        """Threads may write the same bytes only with the same values."""
        width = words.dtype.itemsize
        buffer, places = self.locate(addresses, width)
        if not buffer.writable:
            raise PtxFault("a store to an argument that is only read")
        buffer.touched = True
        table, index = buffer.bytes.view(_UNSIGNED[width]), places // width
        others = buffer.writer[places]
        if ((others >= 0) & (others != threads) & (table[index] != words)).any():
            raise PtxFault("two threads store different values to the same global memory")
        table[index] = words
        if (table[index] != words).any():
            raise PtxFault("two threads of one store write different values to the same global memory")
        for byte in range(width):
            buffer.writer[places + byte] = threads

    def update(self, addresses: Array, width: int, change: Any) -> Array:
        """One thread after another: the words before, with `change(word, i)` stored."""
        buffer, places = self.locate(addresses, width)
        if not buffer.writable:
            raise PtxFault("an atomic on an argument that is only read")
        buffer.touched = True
        table = buffer.bytes.view(_UNSIGNED[width])
        before = np.empty(len(places), _UNSIGNED[width])
        for i, place in enumerate(places // width):
            before[i] = table[place]
            table[place] = change(table[place], i)
        return before


class SharedMemory:
    """Shared bytes of all blocks that run together, with who wrote and who read each since the last barrier.

    Two threads race for a byte if one writes it, no bar.sync lies between, and, in one warp, no warp-wide sync either.
    A byte that cp.async has under way belongs to nobody until its thread has waited for it.
    """

    def __init__(self, blocks: int, size: int, lanes: int) -> None:
        self.size, self.stride = size, -(-size // 16) * 16
        total = blocks * self.stride
        self.bytes = np.zeros(total, np.uint8)
        self.defined = np.zeros(total, bool)
        self.writer, self.reader = np.zeros(total, np.int32), np.zeros(total, np.int32)  # -2: several lanes
        self.write_time, self.read_time = np.full(total, -1, np.int64), np.full(total, -1, np.int64)
        self.write_sync, self.read_sync = np.zeros(total, np.int32), np.zeros(total, np.int32)
        self.under_way = np.full(total, -1, np.int64)  # the lane whose cp.async fills it
        self.time = 0  # counts bar.sync
        self.warp_time = np.zeros(lanes, np.int32)  # counts bar.warp.sync, for each lane
        per_block = lanes // max(blocks, 1)
        self.first = (np.arange(lanes) // max(per_block, 1)) * self.stride

    def locate(self, addresses: Array, width: int, lanes: Array) -> Array:
        if (addresses & np.uint64(width - 1)).any():
            raise PtxFault(f"shared access of {width} bytes at an address that is not a multiple of {width}")
        places = addresses.astype(np.int64) - SHARED_BASE
        if (places < 0).any() or (places + width > self.size).any():
            raise PtxFault(f"shared access of {width} bytes outside of the {self.size} there are")
        return places + self.first[lanes]

    def load(self, addresses: Array, width: int, lanes: Array) -> tuple[Array, Array]:
        """(words, which of them had all bytes written)."""
        places = self.locate(addresses, width, lanes)
        touched = places[:, None] + np.arange(width)
        if (self.write_time[touched] == self.time).any():
            self._race(touched, lanes, self.writer, self.write_time, self.write_sync, "reads what another one wrote")
        if (self.under_way[touched] >= 0).any():
            raise PtxFault("a thread reads what cp.async has not been waited for")
        self._note_read(touched, lanes)
        return self.bytes.view(_UNSIGNED[width])[places // width], self.defined[touched].all(axis=1)

    def store(self, addresses: Array, words: Array, lanes: Array) -> None:
        width = words.dtype.itemsize
        places = self.locate(addresses, width, lanes)
        touched = places[:, None] + np.arange(width)
        table, index = self.bytes.view(_UNSIGNED[width]), places // width
        if (self.read_time[touched] == self.time).any():
            self._race(touched, lanes, self.reader, self.read_time, self.read_sync, "writes what another one read")
        changed = table[index] != words
        if changed.any():
            self._race(touched[changed], lanes[changed], self.writer, self.write_time, self.write_sync, "writes over")
        if (self.under_way[touched] >= 0).any():
            raise PtxFault("a thread writes over what cp.async has under way")
        table[index] = words
        if (table[index] != words).any():
            raise PtxFault("two threads of one store write different values to the same shared memory")
        self._note_write(touched, lanes)

    def copy_begins(self, addresses: Array, data: Array, lanes: Array) -> Array:
        """cp.async: [n, width] bytes set off; the places they go to."""
        touched = self.locate(addresses, data.shape[1], lanes)[:, None] + np.arange(data.shape[1])
        self._race(touched, lanes, self.reader, self.read_time, self.read_sync, "copies over what another one reads")
        self._race(touched, lanes, self.writer, self.write_time, self.write_sync, "copies over what another one wrote")
        if (self.under_way[touched] >= 0).any():
            raise PtxFault("cp.async over what cp.async has under way")
        self.under_way[touched] = lanes[:, None]
        self.bytes[touched] = data
        return touched

    def copy_ends(self, touched: Array, lanes: Array) -> None:
        self.under_way[touched] = -1
        self._note_write(touched, lanes)

    def _note_write(self, touched: Array, lanes: Array) -> None:
        self.defined[touched] = True
        self.writer[touched] = lanes[:, None]
        self.write_time[touched] = self.time
        self.write_sync[touched] = self.warp_time[lanes][:, None]

    def _note_read(self, touched: Array, lanes: Array) -> None:
        mine = lanes[:, None]
        several = (self.read_time[touched] == self.time) & (self.reader[touched] != mine)
        self.reader[touched] = mine
        several |= self.reader[touched] != mine
        self.reader[touched[several]] = -2
        self.read_time[touched] = self.time
        self.read_sync[touched] = self.warp_time[lanes][:, None]

    def _race(self, touched: Array, lanes: Array, who: Array, time: Array, sync: Array, what: str) -> None:
        other, mine = who[touched], lanes[:, None]
        ordered = (other >= 0) & (other // 32 == mine // 32) & (sync[touched] != self.warp_time[lanes][:, None])
        if ((time[touched] == self.time) & (other != mine) & ~ordered).any():
            raise PtxFault(f"race: a thread {what} in shared memory with no barrier between")
