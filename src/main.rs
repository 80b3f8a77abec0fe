fn main() -> std::process::ExitCode {
    podmeter::cli::main()
}
