//! The everturn binary.
fn main() {}
