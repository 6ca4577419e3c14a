//! Tools that work on a text's history, over real sockets: their effects, that these are the same in every kind of work, and what the tools
//! refuse.

mod defaults;
mod effects;
mod everywhere;
mod mistakes;
mod thinking;
mod tools;
