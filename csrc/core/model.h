// From a checked program to an engine that runs it on this CPU.
#pragma once
#include <memory>

#include "engine.h"
#include "program/program.h"

namespace xnorpp {

// `share` is how many threads the work of one image is worth (`threads_worth`): a call takes as many as its images are worth, at
// most `threads`. An `isa` that is not there is a
// std::invalid_argument; a program that needs more than the limits or the machine allow is an Error; threads that the system
// does not start are a std::runtime_error. `releases` gets filters that have been read for the last time.
std::unique_ptr<Engine> make_engine(const Program &program, const std::string &isa, int threads, double share,
                                    const Limits &limits = {}, Releases *releases = nullptr);

// How many threads one image of a program is worth, not rounded: 0.25 means that four images are worth one.
double threads_worth(const Program &program);

// The operations this engine covers, as producers, as moves of an epilogue or as another name.
std::vector<std::string> engine_operations();

}  // namespace xnorpp
