//! `cargo xtask VERB`: the repository's tools.
fn main() {}
