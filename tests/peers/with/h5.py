"""Every rank writes its columns of a file in a collective write, and reads those of the next rank."""

import h5py
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
rows, columns = 1024, 512
whole = numpy.arange(rows * columns * world.size).reshape(rows, -1)


def columns_of(rank):
    return slice(rank * columns, (rank + 1) * columns)


own, following = columns_of(world.rank), columns_of((world.rank + 1) % world.size)
with h5py.File("data.h5", "w", driver="mpio", comm=world) as file:
    data = file.create_dataset("data", whole.shape, dtype="i8")
    with data.collective:
        data[:, own] = whole[:, own]
with h5py.File("data.h5", "r", driver="mpio", comm=world) as file:
    data = file["data"]
    with data.collective:
        read = data[:, following]
if all(world.allgather(bool((read == whole[:, following]).all()))) and world.rank == 0:
    print(f"{world.size} ranks, all right")
