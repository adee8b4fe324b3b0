/* Q-Delta on a GPU from C: tensors, workspace and stream are the caller's, and the call returns before the GPU is done.
 * Checks the result against the CPU's.
 *
 *     CUDA=/usr/local/cuda
 *     cc q_delta_cuda.c $(pkg-config --cflags --libs qdelta) -I$CUDA/include -L$CUDA/lib64 -lcudart -lm
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <qdelta/qdelta.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 300, HEADS = 2, KEYS = 64, VALUES = 128, INPUTS = 6 };

static void check(qdelta_status status) {
  if (status == QDELTA_OK) return;
  fprintf(stderr, "%s: %s\n", qdelta_status_text(status), qdelta_last_error());
  exit(1);
}

static void check_cuda(cudaError_t result) {
  if (result == cudaSuccess) return;
  fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(result));
  exit(1);
}

static DLTensor tensor(void* data, DLDevice device, int ndim, int64_t* shape) {
  DLTensor t = {0};
  t.data = data;
  t.device = device;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

int main(void) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    printf("qdelta %s: no GPU here, nothing to show\n", qdelta_version());
    return 77;
  }
  int64_t key_shape[] = {1, TOKENS, HEADS, KEYS}, value_shape[] = {1, TOKENS, HEADS, VALUES};
  int64_t gate_shape[] = {1, TOKENS, HEADS};
  int64_t* shapes[INPUTS] = {key_shape, key_shape, value_shape, gate_shape, gate_shape, gate_shape};
  const int ranks[INPUTS] = {4, 4, 4, 3, 3, 3};
  const float low[INPUTS] = {-1, -1, -1, -0.1F, 0, 0}, high[INPUTS] = {1, 1, 1, 0, 1, 1};
  const DLDevice cpu = {kDLCPU, 0}, gpu = {kDLCUDA, 0};
  const size_t out_bytes = (size_t)TOKENS * HEADS * VALUES * sizeof(float);

  /* The same values here and there. */
  DLTensor here[INPUTS], there[INPUTS];
  for (int i = 0; i < INPUTS; ++i) {
    size_t count = 1;
    for (int axis = 0; axis < ranks[i]; ++axis) count *= (size_t)shapes[i][axis];
    float* values = malloc(count * sizeof(float));
    if (values == NULL) return 1;
    for (size_t n = 0; n < count; ++n) values[n] = low[i] + (high[i] - low[i]) * (float)rand() / (float)RAND_MAX;
    void* device = NULL;
    check_cuda(cudaMalloc(&device, count * sizeof(float)));
    check_cuda(cudaMemcpy(device, values, count * sizeof(float), cudaMemcpyHostToDevice));
    here[i] = tensor(values, cpu, ranks[i], shapes[i]);
    there[i] = tensor(device, gpu, ranks[i], shapes[i]);
  }
  float *expected = malloc(out_bytes), *got = malloc(out_bytes);
  void* device_out = NULL;
  check_cuda(cudaMalloc(&device_out, out_bytes));
  if (expected == NULL || got == NULL) return 1;

  qdelta_options options;
  qdelta_options_init(&options);
  options.qk_l2norm = 1;
  DLTensor o = tensor(expected, cpu, 4, value_shape);
  qdelta_inputs in = {&here[0], &here[1], &here[2], &here[3], &here[4], &here[5], NULL, NULL};
  qdelta_outputs out = {&o, NULL, NULL};
  check(qdelta_forward(&options, &in, &out));

  /* On the GPU: ask how much scratch memory, then queue the call. */
  cudaStream_t stream = NULL;
  check_cuda(cudaStreamCreate(&stream));
  options.device = gpu;
  options.stream = stream;
  DLTensor d = tensor(device_out, gpu, 4, value_shape);
  qdelta_inputs device_in = {&there[0], &there[1], &there[2], &there[3], &there[4], &there[5], NULL, NULL};
  qdelta_outputs device_result = {&d, NULL, NULL};
  check(qdelta_forward_workspace(&options, &device_in, &device_result, &options.workspace_size));
  check_cuda(cudaMalloc(&options.workspace, options.workspace_size));
  check(qdelta_forward(&options, &device_in, &device_result));
  check_cuda(cudaMemcpyAsync(got, device_out, out_bytes, cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));

  double error = 0, norm = 0;
  for (int i = 0; i < TOKENS * HEADS * VALUES; ++i) {
    error += pow(got[i] - expected[i], 2);
    norm += pow(expected[i], 2);
  }
  const double relative = sqrt(error / norm);
  printf("qdelta %s: %d tokens on the GPU and on the CPU differ by %.1e\n", qdelta_version(), TOKENS, relative);
  return relative < 1e-5 ? 0 : 1;
}
