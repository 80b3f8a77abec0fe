mod figures;
