//! The whole core on simulated devices, from outside: one module for each subject. Never: anything that all of the process has, but for a hook of panics
//! that `crash` sets, which shows all others.

mod blind;
mod common;
mod crash;
mod damage;
mod faults;
mod idle;
mod let_go;
mod model;
mod recognised;
mod recovery;
mod room;
mod unread;
mod window;
