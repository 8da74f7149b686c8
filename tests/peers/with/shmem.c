// A ring of puts and gets of 2 MiB between all PEs, with every byte checked, and a counter at PE 0 that all of them increment.
#include <shmem.h>
#include <stdio.h>

enum { ROUNDS = 20, WORDS = 1 << 18 };

static long sent(int pe, int round, size_t at) {
    return pe * 1000003L + round * 31L + (long)at;
}

int main(void) {
    static long count;
    shmem_init();
    int me = shmem_my_pe(), all = shmem_n_pes(), left = (me + all - 1) % all, wrong = 0;
    long *source = shmem_malloc(WORDS * sizeof *source);
    long *target = shmem_malloc(WORDS * sizeof *target);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t at = 0; at < WORDS; at++) source[at] = sent(me, round, at);
        shmem_barrier_all();
        shmem_long_put(target, source, WORDS, (me + 1) % all);
        shmem_barrier_all();
        for (size_t at = 0; at < WORDS; at++) wrong += target[at] != sent(left, round, at);
        for (size_t at = 0; at < WORDS; at++) target[at] = 0;
        shmem_long_get(target, source, WORDS, left);
        for (size_t at = 0; at < WORDS; at++) wrong += target[at] != sent(left, round, at);
        shmem_long_atomic_inc(&count, 0);
        shmem_barrier_all();
    }
    if (me == 0) printf("%d PEs, counted to %ld\n", all, count);
    if (wrong) printf("PE %d: %d words are wrong\n", me, wrong);
    shmem_finalize();
    return wrong != 0;
}
