//! The wire protocol (RESP2, RESP3 and inline commands): reading commands (`parse`, and `assemble` for those that
//! come in many reads) and writing replies (`encode`). It knows no command and touches no socket.

pub mod assemble;
pub mod encode;
pub mod parse;
