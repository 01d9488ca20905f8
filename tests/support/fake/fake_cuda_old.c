/* fake_cuda_old.c: a libcuda.so.1 of CUDA 11.4. Has only the functions that the CUDA runtime calls
 * before it refuses the old driver. */
int cuInit(unsigned flags);
int cuDriverGetVersion(int *out_version);

int cuInit(unsigned flags)
{
    return (int)flags;
}

int cuDriverGetVersion(int *out_version)
{
    *out_version = 11040;
    return 0;
}
