fn main() -> std::process::ExitCode {
    podmeter::commands::cli::main()
}
