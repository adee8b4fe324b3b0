/* Q-Delta from C: runs a short sequence at once and token by token, and checks that both agree.
 *
 *     cc q_delta.c $(pkg-config --cflags --libs qdelta) -lm && ./a.out
 */
#include <math.h>
#include <qdelta/qdelta.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 100, HEADS = 2, KEYS = 32, VALUES = 48 };

static float q[TOKENS * HEADS * KEYS], k[TOKENS * HEADS * KEYS], v[TOKENS * HEADS * VALUES];
static float g[TOKENS * HEADS], beta[TOKENS * HEADS], lambda[TOKENS * HEADS];
static float o[TOKENS * HEADS * VALUES], o_step[TOKENS * HEADS * VALUES];
static float state[HEADS * KEYS * VALUES], state_step[HEADS * KEYS * VALUES];

/* A DLPack tensor over memory of our own; no strides means row-major. */
static DLTensor tensor(float* data, int ndim, int64_t* shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

static float uniform(void) { return (float)rand() / (float)RAND_MAX; }

static void fill(float* data, int count, float low, float high) {
  for (int i = 0; i < count; ++i) data[i] = low + (high - low) * uniform();
}

static void check(qdelta_status status) {
  if (status == QDELTA_OK) return;
  fprintf(stderr, "%s: %s\n", qdelta_status_text(status), qdelta_last_error());
  exit(1);
}

int main(void) {
  srand(1);
  fill(q, TOKENS * HEADS * KEYS, -1, 1);
  fill(k, TOKENS * HEADS * KEYS, -1, 1);
  fill(v, TOKENS * HEADS * VALUES, -1, 1);
  fill(g, TOKENS * HEADS, -0.1F, 0);
  fill(beta, TOKENS * HEADS, 0, 1);
  fill(lambda, TOKENS * HEADS, 0, 1);

  qdelta_options options;
  qdelta_options_init(&options);
  options.qk_l2norm = 1;

  /* The whole sequence: [batch, tokens, heads, width]. */
  int64_t key_shape[] = {1, TOKENS, HEADS, KEYS}, value_shape[] = {1, TOKENS, HEADS, VALUES};
  int64_t gate_shape[] = {1, TOKENS, HEADS}, state_shape[] = {1, HEADS, KEYS, VALUES};
  DLTensor tq = tensor(q, 4, key_shape), tk = tensor(k, 4, key_shape), tv = tensor(v, 4, value_shape);
  DLTensor tg = tensor(g, 3, gate_shape), tb = tensor(beta, 3, gate_shape), tl = tensor(lambda, 3, gate_shape);
  DLTensor to = tensor(o, 4, value_shape), ts = tensor(state, 4, state_shape);
  qdelta_inputs in = {&tq, &tk, &tv, &tg, &tb, &tl, NULL, NULL};
  qdelta_outputs out = {&to, &ts, NULL};
  check(qdelta_forward(&options, &in, &out));

  /* The same, one token at a time, in place on a pool of one state. */
  DLTensor pool = tensor(state_step, 4, state_shape);
  for (int t = 0; t < TOKENS; ++t) {
    int64_t one_key[] = {1, HEADS, KEYS}, one_value[] = {1, HEADS, VALUES}, one_gate[] = {1, HEADS};
    DLTensor sq = tensor(q + t * HEADS * KEYS, 3, one_key), sk = tensor(k + t * HEADS * KEYS, 3, one_key);
    DLTensor sv = tensor(v + t * HEADS * VALUES, 3, one_value), so = tensor(o_step + t * HEADS * VALUES, 3, one_value);
    DLTensor sg = tensor(g + t * HEADS, 2, one_gate), sb = tensor(beta + t * HEADS, 2, one_gate);
    DLTensor sl = tensor(lambda + t * HEADS, 2, one_gate);
    qdelta_step_arguments step = {&sq, &sk, &sv, &sg, &sb, &sl, &pool, NULL, &so};
    check(qdelta_step(&options, &step));
  }

  double error = 0, norm = 0;
  for (int i = 0; i < TOKENS * HEADS * VALUES; ++i) {
    error += pow(o[i] - o_step[i], 2);
    norm += pow(o[i], 2);
  }
  const double relative = sqrt(error / norm);
  printf("qdelta %s: %d tokens at once and one by one differ by %.1e\n", qdelta_version(), TOKENS, relative);
  return relative < 1e-5 ? 0 : 1;
}
