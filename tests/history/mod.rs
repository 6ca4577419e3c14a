//! Tools that work on a text's history, over real sockets: what they do, that they do the same in every kind of work,
//! and what they refuse.

mod defaults;
mod effects;
mod everywhere;
mod mistakes;
mod thinking;
mod tools;
