//! The record store from outside: a whole run, many writers, crashes, damage.
#![allow(clippy::print_stdout, reason = "child processes of these tests report on stdout")]

mod common;
mod doctor;
mod golden;
mod store;
mod tree;
mod verify;
mod writers;
