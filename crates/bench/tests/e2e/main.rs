//! The benches as a user starts them, scaled down: that they run and what their records have. Never: judges a figure.

mod run;
mod serve;
