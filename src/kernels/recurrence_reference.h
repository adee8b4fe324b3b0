// The oracle behind the contracts of recurrence.h, in double, or in float for the token-by-token backward.
#pragma once

#include "kernels/recurrence.h"

namespace qdelta {

template <class T>
void reference_forward(const RecurrenceForward& args);
template <class T>
void reference_backward(const RecurrenceBackward& args);

extern template void reference_forward<double>(const RecurrenceForward&);
extern template void reference_backward<double>(const RecurrenceBackward&);
extern template void reference_backward<float>(const RecurrenceBackward&);

}  // namespace qdelta
