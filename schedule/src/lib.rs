//! schedule.json: the types, schema, loader and verifier that compiler and executor share.
