// The whole shim as one unit: libtorch's headers take nearly all of the compiler's time, and this way they are read once.
#include "ddp.cpp"
#include "foreach.cpp"
#include "group.cpp"
#include "store.cpp"
#include "torch.cpp"
