/* Tests with threads as ranks. Sums have the contract's order and equal bits on every rank;
 * messages may have any size. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/comm.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { ROWS = 3, COLS = 700, STRIDE = 710, ROUNDS = 200 };

struct rank {
    struct comm *comm;
    float f[ROWS * STRIDE], max[COLS];
    int32_t i[COLS];
    uint8_t gathered[8 * 1000];
    uint8_t received[5000];
    int status;
};

static float value_of(uint32_t rank, uint32_t round, uint32_t at)
{
    struct random r = {rank * 1000003u + round * 101u + at};
    float big = random_uniform(&r, -1e6f, 1e6f);
    /* the magnitudes differ much, so that the order of a sum shows */
    return big * random_uniform(&r, 0.0f, 1.0f);
}

static int one_round(struct rank *rank, uint32_t round)
{
    struct comm *c = rank->comm;
    struct tensor f = {rank->f, DTYPE_F32, ROWS, COLS, STRIDE},
                  max = tensor_view(rank->max, DTYPE_F32, 1, COLS),
                  sums = tensor_view(rank->i, DTYPE_I32, 1, COLS);
    uint8_t mine[1000], message[5000];
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < STRIDE; k++)
            rank->f[r * STRIDE + k] = k < COLS ? value_of(c->index, round, r * COLS + k) : -1.0f;
    for (uint32_t k = 0; k < COLS; k++) {
        rank->max[k] = value_of(c->index, round, k);
        /* the sum overflows from 2 ranks on */
        rank->i[k] = (int32_t)(0x40000000u + c->index * 7 + k);
    }
    memset(mine, (int)(c->index * 16 + round % 16), sizeof(mine));
    int rc = comm_all_reduce(c, NULL, &f, COMM_SUM_TREE_F32);
    rc |= comm_all_reduce(c, NULL, &max, COMM_MAX_F32);
    rc |= comm_all_reduce(c, NULL, &sums, COMM_SUM_I32);
    rc |= comm_all_gather(c, NULL, rank->gathered, mine, sizeof(mine));
    /* around the ring; even ranks send first, so that no two wait for each other */
    if (c->size > 1) {
        uint32_t next = (c->index + 1) % c->size, last = (c->index + c->size - 1) % c->size;
        memset(message, (int)(round + c->index), sizeof(message));
        if (c->index % 2 == 0) {
            rc |= c->ops->send(c, NULL, next, message, sizeof(message));
            rc |= c->ops->recv(c, NULL, last, rank->received, sizeof(message));
        } else {
            rc |= c->ops->recv(c, NULL, last, rank->received, sizeof(message));
            rc |= c->ops->send(c, NULL, next, message, sizeof(message));
        }
    }
    return rc;
}

static void check_round(const struct rank *rank, uint32_t round)
{
    uint32_t size = rank->comm->size;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < STRIDE; k++) {
            float part[8];
            for (uint32_t i = 0; i < size; i++)
                part[i] = value_of(i, round, r * COLS + k);
            float want = size == 1   ? part[0]
                         : size == 2 ? part[0] + part[1]
                         : size == 4 ? (part[0] + part[1]) + (part[2] + part[3])
                                     : ((part[0] + part[1]) + (part[2] + part[3])) +
                                           ((part[4] + part[5]) + (part[6] + part[7]));
            assert_true(rank->f[r * STRIDE + k] == (k < COLS ? want : -1.0f));
        }
    for (uint32_t k = 0; k < COLS; k++) {
        float max = value_of(0, round, k);
        uint32_t sum = 0;
        for (uint32_t i = 0; i < size; i++) {
            max = value_of(i, round, k) > max ? value_of(i, round, k) : max;
            sum += 0x40000000u + i * 7 + k;
        }
        assert_true(rank->max[k] == max);
        assert_int_equal((uint32_t)rank->i[k], sum);
    }
    for (uint32_t i = 0; i < size * 1000; i++)
        assert_int_equal(rank->gathered[i], i / 1000 * 16 + round % 16);
    if (size > 1)
        assert_int_equal(rank->received[4999],
                         (uint8_t)(round + (rank->comm->index + size - 1) % size));
}

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    for (uint32_t round = 0; round < ROUNDS; round++)
        rank->status |= one_round(rank, round);
    return NULL;
}

static void test_collectives_of_every_size_keep_order_and_agree(void **state)
{
    (void)state;
    /* bytes per piece, below and above the messages' sizes */
    static const size_t limits[] = {64, 1000, 1 << 20};
    for (uint32_t size = 1; size <= 8; size *= 2)
        for (int l = 0; l < 3; l++) {
            struct comm *comms[8];
            struct error err = {0};
            pthread_t threads[8];
            struct rank *ranks = calloc(size, sizeof(*ranks));
            assert_int_equal(comm_shm_create(size, limits[l], comms, &err), 0);
            for (uint32_t i = 0; i < size; i++) {
                ranks[i].comm = comms[i];
                assert_int_equal(comms[i]->index, i);
                assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
            }
            for (uint32_t i = 0; i < size; i++)
                pthread_join(threads[i], NULL);
            for (uint32_t i = 0; i < size; i++) {
                assert_int_equal(ranks[i].status, 0);
                check_round(&ranks[i], ROUNDS - 1);
            }
            for (uint32_t i = 0; i < size; i++)
                comm_destroy(comms[i]);
            free(ranks);
        }
    comm_destroy(NULL);
}

static void test_bad_groups_and_messages_are_refused(void **state)
{
    (void)state;
    struct comm *comms[8];
    struct error err = {0};
    assert_int_equal(comm_shm_create(3, 64, comms, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(comm_shm_create(2, 0, comms, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(comm_shm_create(2, 64, comms, &err), 0);
    float data[4] = {0};
    struct tensor t = tensor_view(data, DTYPE_F32, 1, 4);
    assert_int_equal(comm_all_reduce(comms[0], NULL, &t, COMM_SUM_I32), STATUS_INTERNAL);
    assert_int_equal(comms[0]->ops->send(comms[0], NULL, 0, data, 4), STATUS_INTERNAL);
    assert_int_equal(comms[0]->ops->recv(comms[0], NULL, 2, data, 4), STATUS_INTERNAL);
    comm_destroy(comms[0]);
    comm_destroy(comms[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives_of_every_size_keep_order_and_agree),
        cmocka_unit_test(test_bad_groups_and_messages_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
