mod admission;
mod identity;
