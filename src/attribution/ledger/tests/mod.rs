mod boards;
mod cases;
mod figures;
mod laws;
mod reference;
mod scene;
mod when;
mod worlds;
