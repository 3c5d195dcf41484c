// From a checked program to an engine that runs it on this CPU.
#pragma once
#include <memory>

#include "engine.h"
#include "program.h"

namespace xnorpp {

// `threads` 0: as many as the work of a call's images is worth, at most `most`. An `isa` that is not there is a
// std::invalid_argument; a program that needs more than the engine allows is an Error.
std::unique_ptr<Engine> make_engine(const Program &program, const std::string &isa, int threads, int most,
                                    const Limits &limits = {});

// How many threads one image of a program is worth, not rounded: 0.25 means that four images are worth one.
double threads_worth(const Program &program);

// The operations this engine covers, as producers, as moves of an epilogue or as another name.
std::vector<std::string> engine_operations();

}  // namespace xnorpp
