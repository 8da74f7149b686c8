//! Input that is made up: the corpus of the fuzzer, and seeded runs of pairs of devices.

mod corpus;
mod seeded;
