// Owns a precompiled header (cmake/Rooms.cmake); has nothing of its own.
