// Sends objects of any size and shape from every rank to every rank, and around a ring, by Boost.MPI.
#include <boost/mpi.hpp>
#include <boost/serialization/map.hpp>
#include <boost/serialization/string.hpp>
#include <boost/serialization/vector.hpp>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace mpi = boost::mpi;
using Objects = std::map<std::string, std::vector<int>>;

static Objects objects_of(int rank) {
    Objects all;
    for (int each = 0; each < 100; each++)
        all[std::to_string(each)] = std::vector<int>(each * 50, rank + each);
    return all;
}

int main() {
    mpi::environment environment;
    mpi::communicator world;
    const int size = world.size(), rank = world.rank();
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;

    std::vector<Objects> gathered;
    mpi::all_gather(world, objects_of(rank), gathered);
    bool right = true;
    for (int from = 0; from < size; from++)
        right = right && gathered[from] == objects_of(from);

    std::vector<int> passed(1 << 20, rank), came;
    mpi::request requests[] = {world.isend(next, 1, passed), world.irecv(last, 1, came)};
    mpi::wait_all(requests, requests + 2);
    right = right && came == std::vector<int>(1 << 20, last);

    if (mpi::all_reduce(world, right, std::logical_and<bool>()) && rank == 0)
        std::cout << size << " ranks, all right" << std::endl;
}
