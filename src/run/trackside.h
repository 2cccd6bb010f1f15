/* The Python text that a tracker's process runs; see trackside.c for what it is told. */
#ifndef RUN_TRACKSIDE_H
#define RUN_TRACKSIDE_H

extern const char trackside_wandb[], trackside_mlflow[];

#endif
