// Checks of the recurrence's arguments: every message names the tensor, what it is and what it should be.
#pragma once

#include "kernels/recurrence.h"
#include "kernels/recurrence_map.h"

namespace qdelta {

void check(const Device& device);
void check(const RecurrenceInputs& in);
void check(const Execution& run);
void check(const RecurrenceForward& args);
void check(const RecurrenceBackward& args);
void check(const RecurrenceStep& args);
void check(const RecurrenceSettle& args);
void check(const RecurrenceUndo& args);
void check(const RecurrenceMap& args);
void check(const RecurrenceEntryGradient& args);
void check(const RecurrenceMapProduct& args);

}  // namespace qdelta
