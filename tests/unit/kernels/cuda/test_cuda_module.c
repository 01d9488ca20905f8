/* Tests of the CUDA module as the programs use it. The module may be missing, and opens at run
 * time. Without a usable GPU there is a clear reason. The folder tests/gpu tests its results on a
 * GPU machine. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/ops.h"

#ifndef SLUICE_CUDA_BUILT
#define SLUICE_CUDA_BUILT 0
#endif

#define MODULE SLUICE_BIN_DIR "/libsluice_cuda.so"

static void test_module_says_why_it_cannot_be_used(void **state)
{
    (void)state;
    struct backend_module module = {0};
    struct error err = {0}, again = {0};
    int rc = backend_cuda(&module, &err);
    assert_int_equal(rc, err.status);
    /* the module is opened once; each call reports the same error */
    assert_int_equal(backend_cuda(&module, &again), rc);
    assert_string_equal(err.message, again.message);
    if (!SLUICE_CUDA_BUILT) {
        assert_int_equal(rc, STATUS_NOT_FOUND);
    } else if (rc == 0) {
        print_message("%u CUDA devices\n", module.n_devices);
        assert_true(module.n_devices > 0);
        assert_string_equal(module.device_ops->name, "cuda");
        assert_string_equal(module.op_table->name, "cuda");
    } else {
        print_message("%s\n", err.message);
        assert_true(rc == STATUS_FAILED_PRECONDITION || rc == STATUS_NOT_FOUND);
        assert_true(err.message[0]);
    }
}

static void test_module_needs_neither_driver_nor_cublas_to_load(void **state)
{
    (void)state;
    if (!SLUICE_CUDA_BUILT) {
        assert_null(dlopen(MODULE, RTLD_NOW | RTLD_LOCAL));
        return;
    }
    void *handle = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail_msg("%s", dlerror());
    assert_non_null(dlsym(handle, SLUICE_CUDA_ENTRY));
    assert_null(dlsym(handle, "device_ops_cuda")); /* the module exports one name */
    dlclose(handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_module_says_why_it_cannot_be_used),
        cmocka_unit_test(test_module_needs_neither_driver_nor_cublas_to_load),
    };
    unsetenv("SLUICE_CUDA_MODULE"); /* so the module beside the test program is used */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
