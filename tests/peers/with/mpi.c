/*
 * MPI over verbs, with every byte checked: a ring, reductions, all to all, messages without a posted receive, and
 * one-sided access, of sizes from 0 to 4 MiB. Built with an implementation's mpicc; see mpi-check.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t sizes[] = {0, 1, 7, 64, 1000, 4096, 65536, 1000000, 4194304};
enum { SIZES = sizeof sizes / sizeof *sizes };

static int rank, ranks;
static long checks;

static unsigned char value(int from, int to, size_t at, int round)
{
	return (unsigned char)(from * 31 + to * 17 + round * 7 + at * 3 + (at >> 8));
}

static void fill(unsigned char *octets, size_t length, int from, int to, int round)
{
	for (size_t at = 0; at < length; at++)
		octets[at] = value(from, to, at, round);
}

static void expect(const unsigned char *octets, size_t length, int from, int to, int round, const char *what)
{
	for (size_t at = 0; at < length; at++) {
		if (octets[at] == value(from, to, at, round))
			continue;
		fprintf(stderr, "%s: rank %d: byte %zu of %zu from %d is %#x instead of %#x\n", what, rank, at, length, from,
			octets[at], value(from, to, at, round));
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	checks++;
}

static unsigned char *room(size_t length)
{
	unsigned char *octets = malloc(length + 1);
	if (!octets)
		MPI_Abort(MPI_COMM_WORLD, 2);
	memset(octets, 0xa5, length + 1);
	return octets;
}

static void ring(size_t length, int round)
{
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	unsigned char *out = room(length), *in = room(length);
	fill(out, length, rank, right, round);
	MPI_Sendrecv(out, (int)length, MPI_BYTE, right, round, in, (int)length, MPI_BYTE, left, round, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	expect(in, length, left, rank, round, "ring");
	free(out);
	free(in);
}

/* Receives are posted in the opposite order, after all messages were sent. */
static void unexpected(size_t length)
{
	enum { EACH = 8 };
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	MPI_Request sends[EACH];
	unsigned char *out[EACH], *in = room(length);
	for (int i = 0; i < EACH; i++) {
		out[i] = room(length);
		fill(out[i], length, rank, right, i);
		MPI_Isend(out[i], (int)length, MPI_BYTE, right, 100 + i, MPI_COMM_WORLD, &sends[i]);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = EACH - 1; i >= 0; i--) {
		MPI_Recv(in, (int)length, MPI_BYTE, left, 100 + i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		expect(in, length, left, rank, i, "unexpected");
	}
	MPI_Waitall(EACH, sends, MPI_STATUSES_IGNORE);
	for (int i = 0; i < EACH; i++)
		free(out[i]);
	free(in);
}

static void alltoall(size_t length, int round)
{
	unsigned char *out = room(length * ranks), *in = room(length * ranks);
	for (int to = 0; to < ranks; to++)
		fill(out + to * length, length, rank, to, round);
	MPI_Alltoall(out, (int)length, MPI_BYTE, in, (int)length, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		expect(in + from * length, length, from, rank, round, "alltoall");
	free(out);
	free(in);
}

static void allreduce(size_t length)
{
	int count = (int)(length / sizeof(long));
	long *out = (long *)room(length), *in = (long *)room(length);
	for (int at = 0; at < count; at++)
		out[at] = (long)rank * 1000003 + at;
	MPI_Allreduce(out, in, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int at = 0; at < count; at++) {
		long sum = 1000003L * ranks * (ranks - 1) / 2 + (long)at * ranks;
		if (in[at] != sum) {
			fprintf(stderr, "allreduce: rank %d: element %d is %ld instead of %ld\n", rank, at, in[at], sum);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	checks++;
	free(out);
	free(in);
}

static void one_sided(size_t length)
{
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
	unsigned char *window = room(length), *got = room(length);
	long sums[2] = {0, 0};
	MPI_Win win, sum;
	MPI_Win_create(window, (MPI_Aint)length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	MPI_Win_create(sums, sizeof sums, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &sum);
	fill(got, length, rank, right, 3);
	MPI_Win_fence(0, win);
	MPI_Put(got, (int)length, MPI_BYTE, right, 0, (int)length, MPI_BYTE, win);
	MPI_Win_fence(0, win);
	expect(window, length, left, rank, 3, "put");
	memset(got, 0, length);
	MPI_Win_fence(0, win);
	MPI_Get(got, (int)length, MPI_BYTE, left, 0, (int)length, MPI_BYTE, win);
	MPI_Win_fence(0, win);
	expect(got, length, (left + ranks - 1) % ranks, left, 3, "get");

	/* Every rank adds to every rank, ten times, under a lock. */
	MPI_Barrier(MPI_COMM_WORLD);
	for (int time = 0; time < 10; time++) {
		long more[2] = {1, rank};
		for (int to = 0; to < ranks; to++) {
			MPI_Win_lock(MPI_LOCK_SHARED, to, 0, sum);
			MPI_Accumulate(more, 2, MPI_LONG, to, 0, 2, MPI_LONG, MPI_SUM, sum);
			MPI_Win_unlock(to, sum);
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, sum);
	if (sums[0] != 10L * ranks || sums[1] != 5L * ranks * (ranks - 1)) {
		fprintf(stderr, "accumulate: rank %d: %ld and %ld\n", rank, sums[0], sums[1]);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	MPI_Win_unlock(rank, sum);
	checks++;
	MPI_Win_free(&sum);
	MPI_Win_free(&win);
	free(window);
	free(got);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Measures half a round trip of eight bytes between the first two ranks. */
static void latency(void)
{
	enum { ROUNDS = 2000 };
	static double took[ROUNDS];
	char octets[8] = {0};
	for (int i = 0; i < ROUNDS && rank < 2; i++) {
		double began = MPI_Wtime();
		if (rank == 0)
			MPI_Send(octets, 8, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(octets, 8, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(octets, 8, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
		took[i] = (MPI_Wtime() - began) * 5e5;
	}
	if (rank == 0) {
		qsort(took, ROUNDS, sizeof *took, ascending);
		printf("8 B half round trip: median %.1f us, 99 %% %.1f us, 99.9 %% %.1f us, largest %.0f us\n",
		       took[ROUNDS / 2], took[ROUNDS * 99 / 100], took[ROUNDS * 999 / 1000], took[ROUNDS - 1]);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	long all;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 0; i < SIZES; i++) {
		ring(sizes[i], i);
		unexpected(sizes[i]);
		alltoall(sizes[i], i);
		allreduce(sizes[i]);
		one_sided(sizes[i]);
	}
	latency();
	MPI_Reduce(&checks, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%ld checks passed on %d ranks\n", all, ranks);
	MPI_Finalize();
	return 0;
}
