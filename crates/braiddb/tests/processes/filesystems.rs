//! File systems that fill up.
