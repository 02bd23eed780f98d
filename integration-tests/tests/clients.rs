//! Client programs from package registries against a real server with a real model.

use lavalane_integration_tests::server::check_python_module;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lavalane_under_test");
/// A client that leaves is noticed between two iterations, so that long ones would make slow tests.
const SHORT_ITERATIONS: &[&str] = &["--lanes", "4", "--batch-rows", "64"];
/// The pool holds about three of the four conversations that this server is asked for at once.
const SMALL_POOL: &[&str] = &["--lanes", "4", "--context", "512", "--kv-mb", "24"];

#[test]
fn the_official_openai_client_is_served() {
    check_python_module(PROGRAM, "openai_client", &[&["--context", "1024"], &["--prefix-reuse", "false"]]);
}

#[test]
fn a_websocket_client_is_served() {
    check_python_module(PROGRAM, "websocket_client", &[&["--lanes", "4"]]);
}

#[test]
fn two_hundred_requests_of_sixteen_clients_are_right_though_a_third_is_cut_off() {
    check_python_module(PROGRAM, "many_clients", &[SHORT_ITERATIONS, SMALL_POOL]);
}
