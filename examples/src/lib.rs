//! Examples of Everturn, one idea per file, in `src/bin`.
