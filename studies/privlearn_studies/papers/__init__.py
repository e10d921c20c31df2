"""Studies of the papers that the learners are built on."""
