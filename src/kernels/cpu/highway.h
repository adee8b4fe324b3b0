// Highway's way to compile a file once for every instruction set. A file says its own path and includes this, then what
// it needs of *-inl.h:
//
//   #define HWY_TARGET_INCLUDE "kernels/cpu/FILE.cpp"
//   #include "kernels/cpu/highway.h"
//
// It is then included again for every instruction set, each time compiling what stands between HWY_BEFORE_NAMESPACE()
// and HWY_AFTER_NAMESPACE(). What stands under `#if HWY_ONCE` is compiled once; there HWY_EXPORT makes the table of a
// function's versions and HWY_DYNAMIC_DISPATCH takes the one for this processor.
//
// No include guard: Highway's header is seen again for every instruction set.
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>
