// Cannot be loaded: its library is nowhere where the loader looks (CMakeLists.txt).
extern int campaign_gone();

int main() { return campaign_gone(); }
