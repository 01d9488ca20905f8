/* Include order matters: the code below uses the tile instructions. */
/* clang-format off */
#include "kernels/cpu/linear/tiles_amx.h"
#include "kernels/cpu/linear/tiles_check_impl.h"
/* clang-format on */

#include <pthread.h>

#include "base/system/cpu.h"
#include "kernels/cpu/linear/linear_amx.h"

static bool int8_checks, bf16_checks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void check(void)
{
    int8_checks = check_tiles_int8();
    bf16_checks = cpu_features()->amx_bf16 && check_tiles_bf16();
}

bool linear_amx_int8_checks(void)
{
    pthread_once(&once, check);
    return int8_checks;
}

bool linear_amx_bf16_checks(void)
{
    pthread_once(&once, check);
    return bf16_checks;
}
