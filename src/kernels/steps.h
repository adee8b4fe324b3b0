// What a model does with one token of each sequence, in as few launches as a GPU can do it in. Each of these is some
// ops of layers.h and recurrence.h, one after the other: the members of its struct, in their order, each reading what
// the one before it wrote. What only passes from one member to the next need not be in memory afterwards.
//
// On the CPU they are just that. On a GPU, with bfloat16 activations, products are taken together with what comes
// before and behind them. Where shapes or alignments ask too much they are just the ops, too. Under RowsAlone
// (row_blocks.h) a row has the same bits whatever the rows beside it.
#pragma once

#include "kernels/layers.h"
#include "kernels/recurrence.h"

namespace qdelta {

// out = residual + mixer(norm(x)): model/recurrence_mixer.h
struct MixerStep {
  RmsNormForward norm;
  LinearForward project;
  ShortConvForward conv;  // of the first columns of project.y; with a state, a token for each sequence
  GatesForward gates;     // of columns of project.y
  RecurrenceStep recurrence;
  GatedNormForward out_norm;
  LinearForward out;
};
void mixer_step(const Device& device, const MixerStep& args, Workspace& workspace);

// out = residual + mlp(norm(x))
struct MlpStep {
  RmsNormForward norm;
  LinearForward gate_up;
  SwigluForward swiglu;  // of the two halves of gate_up.y
  LinearForward down;
};
void mlp_step(const Device& device, const MlpStep& args);

// logits = head(norm(x))
struct HeadStep {
  RmsNormForward norm;
  LinearForward head;
};
void head_step(const Device& device, const HeadStep& args);

}  // namespace qdelta
