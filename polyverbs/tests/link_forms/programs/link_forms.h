/* What a program for C finds registered in the library that it is linked with. */
#ifndef LINK_FORMS_H
#define LINK_FORMS_H

/* Prints what the linker kept of what registers itself. Returns 0, or 1 where the registry could not be made. */
int link_forms_linked(void);

/* Prints what a registry has whose extensions and providers are added one by one. Returns the same. */
int link_forms_added(void);

#endif
