// A library that is not where its user looks for it; see CMakeLists.txt.
extern int campaign_gone();

int campaign_gone() { return 0; }
