#include "link_forms.h"

#include <string.h>

int main(int argc, char **argv)
{
	return argc > 1 && strcmp(argv[1], "added") == 0 ? link_forms_added() : link_forms_linked();
}
