mod boards;
mod figures;
mod laws;
mod reference;
mod scene;
mod worlds;
