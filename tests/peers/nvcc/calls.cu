// Compiled by: nvcc -ptx -arch=sm_90a -std=c++17 -O3 calls.cu -o calls.ptx (13.5).
// Kinds that Triton does not write: virtual calls and tables of functions, initial values with
// addresses, recursion, indirect branches, printf, locks, look-back between blocks, lock-free lists.
#include <cstdio>

typedef float (*Function)(float);
__device__ __noinline__ float next_of(float x) { return x + 1; }
__device__ __noinline__ float twice(float x) { return x * 2; }
__device__ __noinline__ float negative(float x) { return -x; }
__device__ Function device_table[3] = {next_of, twice, negative};
__constant__ Function constant_table[3] = {negative, next_of, twice};

extern "C" __global__ void tables(float *out, const int *choice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = i;
  for (int k = 0; k < 4; k++)
    x = device_table[(choice[i] + k) % 3](x) + constant_table[choice[i]](x);
  out[i] = x;
}

struct Base {
  int t;
  __device__ Base(int t) : t(t) {}
  __device__ virtual int f(int x) { return x + t; }
};
struct Product : Base {
  __device__ Product(int t) : Base(t) {}
  __device__ int f(int x) override { return x * t; }
};

extern "C" __global__ void virtual_calls(int *out, const int *choice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  Base a(i);
  Product b(i + 1);
  Base *both[2] = {&a, &b};
  int sum = 0;
  for (int k = 0; k < 5; k++) sum += both[(choice[i] + k) & 1]->f(k);
  out[i] = sum;
}

struct __attribute__((packed)) Row { char c; const int *p; short s; };
__device__ int numbers[4] = {10, 20, 30, 40};
__device__ Row rows[2] = {{'a', numbers + 1, 3}, {'b', numbers + 3, 5}};

extern "C" __global__ void packed_rows(int *out, const int *choice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  Row row = rows[choice[i] & 1];
  out[i] = row.c + *row.p + row.s;
}

__device__ int ackermann(int m, int n) {
  if (!m) return n + 1;
  if (!n) return ackermann(m - 1, 1);
  return ackermann(m - 1, ackermann(m, n - 1));
}

extern "C" __global__ void recursion(int *out, const int *choice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = ackermann(choice[i], i & 3);
}

extern "C" __global__ void prints(int *out, const int *choice) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = i < 2 ? printf("%d %s %.2f\n", choice[i], "of", i * 0.5) : 0;
}

__device__ int lock;

extern "C" __global__ void locked(int *out, const int *choice) {
  if (threadIdx.x == 0) {
    while (atomicCAS(&lock, 0, 1)) __nanosleep(10);
    __threadfence();
    out[0] = out[0] * 3 + choice[0];
    __threadfence();
    atomicExch(&lock, 0);
  }
}
