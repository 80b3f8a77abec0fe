//! `podmeter-migrate FILE…`

fn main() -> std::process::ExitCode {
    podmeter_migrate::cli::main()
}
