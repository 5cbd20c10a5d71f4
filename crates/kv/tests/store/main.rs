//! The whole core on simulated devices, from outside: one module for each subject. Never: anything that all of the process has, but for a hook of panics
//! that `crash` sets, which shows all others.

mod blind;
mod common;
mod crash;
mod damage;
mod faults;
mod holes;
mod idle;
mod let_go;
mod model;
mod pinned;
mod reads;
mod recognised;
mod recovery;
mod room;
mod set_back;
mod tags;
mod unread;
mod window;
